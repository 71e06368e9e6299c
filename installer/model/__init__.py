"""The nouns: frozen values that the stages hand from left to right. No effects, no I/O."""
