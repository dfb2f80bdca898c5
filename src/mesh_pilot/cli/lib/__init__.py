"""Common to all commands: options, settings in files, output for terminals and pipes, logs, processes."""
