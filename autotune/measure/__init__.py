"""Pure functions over measured data; no job is started and no file is written here."""
