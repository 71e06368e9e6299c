"""What befalls a throwaway host: kills, signals, power cuts, a system that misbehaves, random lives."""
