"""What a person reads of a sweep, while it runs and afterwards, and the same for machines."""
