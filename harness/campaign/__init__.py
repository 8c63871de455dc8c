"""Running a campaign: the folder and its records, slots in fresh processes, telemetry, resuming."""
