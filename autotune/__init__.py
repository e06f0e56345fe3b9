"""Autotuner for RLHF training with verl.

Deliberately imports nothing: ``autotune --help`` must answer at once, and a verl worker may import
a module of this package while unpickling, before verl itself is initialised.
"""
