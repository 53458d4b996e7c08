"""Files of other programs: models, layouts and machines."""
