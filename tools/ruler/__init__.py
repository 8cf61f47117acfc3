"""The measures of `tools/check_size.py`: what a reader meets in modules, objects, folders and imports."""
