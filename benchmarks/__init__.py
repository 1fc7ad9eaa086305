"""Measurements of this project, one file each. Speeds are ratios within one run, because machines are noisy."""
