"""Posteriors in files."""
