"""The process and its surroundings: device, ranks, start-up, seeds, signals, timers, barriers."""
