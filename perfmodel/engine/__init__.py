"""The engine: when everything happens, given what must run and how long each task takes."""
