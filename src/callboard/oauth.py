"""Credentials of clients: `Client(url, auth=OAuth())`. The guide is docs/oauth.md."""

from __future__ import annotations

from callboard.client.errors import AuthorizationFailed
from callboard.client.oauth.flow import OAuth
from callboard.client.oauth.grants import ClientCredentials, EnterpriseManaged, WorkloadIdentity
from callboard.client.oauth.redirect import RedirectReceiver
from callboard.client.oauth.storage import FileStorage, KeyringStorage, MemoryStorage, Storage, StorageError

__all__ = [
    "AuthorizationFailed",
    "ClientCredentials",
    "EnterpriseManaged",
    "FileStorage",
    "KeyringStorage",
    "MemoryStorage",
    "OAuth",
    "RedirectReceiver",
    "Storage",
    "StorageError",
    "WorkloadIdentity",
]
