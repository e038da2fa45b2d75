"""What users of one program cost each other."""
