"""What users are told: complaints about arguments, names that were meant, warnings."""
