"""Attacks on the promise: hostile models, settings, environments, threads and schedules."""
