import { createHmac, timingSafeEqual } from 'node:crypto';
import { readdirSync, readFileSync } from 'node:fs';

const KEYS = process.env.TOKEN_KEYS ?? '/var/run/agentcube/token';

// What the token says, an object. Throws if it is not genuine, has expired, or is not for us.
export function verify(token, instance, now = Date.now() / 1000) {
  const files = readdirSync(KEYS).filter((file) => file.endsWith('.key'));
  const keys = new Map(files.map((file) => [file.slice(0, -4), readFileSync(`${KEYS}/${file}`)]));
  const [version, keyId, payload, signature, ...more] = token.split('.');
  if (token.length > 4096 || version !== 'v1' || signature === undefined || more.length || !keys.has(keyId))
    throw new Error('malformed, or signed with an unknown key');
  const hmac = createHmac('sha256', keys.get(keyId)).update(`v1.${keyId}.${payload}`);
  const [expected, given] = [Buffer.from(hmac.digest('base64url')), Buffer.from(signature)];
  if (given.length !== expected.length || !timingSafeEqual(given, expected)) throw new Error('wrong signature');
  const claims = JSON.parse(Buffer.from(payload, 'base64url'));
  if (claims.task !== readFileSync(`${KEYS}/task`, 'utf8').trim() || claims.instance !== instance)
    throw new Error('for another Task or instance');
  if (!(claims.exp > now)) throw new Error('expired');
  return claims;
}
