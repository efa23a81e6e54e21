"""The command line's verbs: each parses its words, calls the library, and prints."""
