"""The commands of ``autotune``, one module each."""
