"""What forums teach: the study in study/."""
