"""Sign codes: angular hybrids without their wide features."""
