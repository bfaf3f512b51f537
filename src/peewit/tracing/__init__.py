"""Forward passes that are recorded, and gradients pulled back from them to every use of a weight."""
