"""What is made of results: text for a terminal, a Markdown page, an HTML page."""
