"""One module a verb of the command line: it parses, calls the library and prints."""
