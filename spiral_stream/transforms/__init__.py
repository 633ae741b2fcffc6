"""Transforms: array to array, as frozen values of the plan."""
