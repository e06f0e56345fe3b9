"""Can this sweep run on this cluster? Facts of every node, and what is wrong with them."""
