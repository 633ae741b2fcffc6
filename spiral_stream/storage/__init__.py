"""Bytes by URI: object stores and local files behind one face, and the options that reach them."""
