"""The facts of explain and plan as pictures, pages and tables."""
