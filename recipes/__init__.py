"""The command line and the recipes: the only package that knows all the others."""
