"""`config_constants` and `config_objects`, resolved from the configuration when a name is used."""
