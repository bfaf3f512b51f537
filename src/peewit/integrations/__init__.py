"""Peewit inside other libraries: one folder for each library."""
