"""Networks of timm and transformers, unchanged: which rules their weights get, and what a fit and a prediction take."""
