"""Analytic and learned models of memory, communication and step time."""
