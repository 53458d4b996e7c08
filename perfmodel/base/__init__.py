"""What every room stands on: units, errors, number formats, safe reading of documents."""
