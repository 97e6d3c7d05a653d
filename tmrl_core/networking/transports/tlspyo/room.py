"""Transport for users of tlspyo, with its keys of the section `network` and its files of the credentials folder."""

TRANSPORTS = {"tlspyo": "tmrl_core.networking.transports.tlspyo.selection:TlspyoKind"}
SECTIONS = {"tlspyo": "tmrl_core.networking.transports.tlspyo.settings:TlspyoKeys"}
CREDENTIAL_FILES = {"tlspyo": "tmrl_core.networking.transports.tlspyo.files:TlspyoFiles"}
