"""Predictions one input at a time: what is known of a network and a way to predict is worked out once, and kept."""
