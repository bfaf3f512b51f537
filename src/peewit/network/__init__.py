"""The network of the user: its inputs, how it is called, and how it is handed back as it was."""
