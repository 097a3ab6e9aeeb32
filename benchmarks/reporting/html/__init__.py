"""The page with plots: one file without scripts that works offline.

`plots` draws, `page` puts tables and plots together. The style is the inspector's, with `page.css`.
"""
