"""Pages of the web: as files, and in the archives of crawls."""
