"""systemd's file formats as systemd reads them: unit files and EnvironmentFiles. Pure."""
