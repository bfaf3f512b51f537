"""From weights to outputs (`functional`), and from outputs to labels (`question` and the rest)."""
