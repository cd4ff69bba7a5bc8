"""Files that a store can be made from, one format a module."""
