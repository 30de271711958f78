"""Wikipedia and other wikis of MediaWiki: their dumps, and what WikiExtractor made of them."""
