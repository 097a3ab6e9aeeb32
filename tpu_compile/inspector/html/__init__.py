"""The page that `report --html` writes: one file that works offline.

`facts` says what the page knows, `gather` and `liveness` find it in compiled programs, `page` puts
it into the page. The page itself is `page.html`, `style.css` and the scripts beside it.
"""
