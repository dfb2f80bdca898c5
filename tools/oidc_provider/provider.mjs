#!/usr/bin/env node
// An issuer of OpenID Connect for tests: `node provider.mjs SETTINGS.json`.
//
// The accounts of the settings are read at each use, so a test may take somebody out of a group. Everybody's password
// is right: what is tested is the client.

import { readFileSync } from "node:fs";

import Provider from "oidc-provider";

const path = process.argv[2];
const settings = JSON.parse(readFileSync(path));
const accounts = () => JSON.parse(readFileSync(path)).accounts;

const provider = new Provider(settings.issuer, {
  clients: settings.clients,
  jwks: settings.jwks,
  cookies: { keys: ["of-tests"] },
  claims: { openid: ["sub"], profile: ["name"], email: ["email", "email_verified"], groups: ["groups"] },
  scopes: ["openid", "offline_access", "profile", "email", "groups"],
  conformIdTokenClaims: false,
  pkce: { required: () => true },
  features: { deviceFlow: { enabled: true }, devInteractions: { enabled: true }, rpInitiatedLogout: { enabled: true }, revocation: { enabled: true } },
  ttl: { IdToken: settings.id_token_seconds, AccessToken: 3600, DeviceCode: 600, Grant: 86400, Session: 86400, Interaction: 3600, RefreshToken: 86400 },
  issueRefreshToken: async (ctx, client, code) => client.grantTypeAllowed("refresh_token") && code.scopes.has("offline_access"),
  findAccount: async (ctx, id) => {
    const claims = accounts()[id];
    return claims && { accountId: id, claims: async () => ({ sub: id, ...claims }) };
  },
});
provider.listen(settings.port, "127.0.0.1", () => console.log("listening"));
