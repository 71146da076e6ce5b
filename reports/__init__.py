"""Numbers in words, tables and pictures, for all scripts."""
