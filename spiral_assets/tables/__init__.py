"""Tables that lie in the catalog, opened with the libraries that own their format."""
