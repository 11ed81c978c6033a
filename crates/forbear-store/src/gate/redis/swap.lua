-- Compares and sets the values of KEYS, all or none; the one thing that a store does. It holds no rule.
-- ARGV: the channel, or '' to tell nobody; then for each key what its value must begin with ('' for no value), its
-- new value ('' to leave it), and for how many milliseconds it is kept.
-- Answers with the time; and, where something was not as expected and so nothing is written, with all that is there.
local answer, same = redis.call('TIME'), true
for i, key in ipairs(KEYS) do
  local value, expected = redis.call('GET', key), ARGV[3 * i - 1]
  answer[i + 2] = value
  if value then
    same = same and expected ~= '' and string.sub(value, 1, #expected) == expected
  else
    same = same and expected == ''
  end
end
if not same then return answer end
for i, key in ipairs(KEYS) do
  local value = ARGV[3 * i]
  if value ~= '' then
    redis.call('SET', key, value, 'PX', ARGV[3 * i + 1])
    if ARGV[1] ~= '' then redis.call('PUBLISH', ARGV[1], key .. '\0' .. value) end
  end
end
return {answer[1], answer[2]}
