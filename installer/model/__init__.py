"""The nouns: frozen values that each stage hands to the next. No effects, no I/O."""
