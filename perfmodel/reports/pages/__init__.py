"""Pages: answers as single HTML files that need nothing else, all in one style."""
