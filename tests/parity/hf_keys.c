/* SPDX-License-Identifier: Apache-2.0
 *
 * Reads files of Hugging Face, as `hf_keys.py` asks: each line of the input is "config FOLDER",
 * which has the files beside config.json as well, or "peft FILE LAYER". The program answers each
 * line with "ok" or with "no" and the error. For "peft", the layer's rank and scale follow "ok".
 */
#include <stdio.h>
#include <string.h>

#include "common/model/hf/hf.h"
#include "common/model/weights/weights.h"

static void answer_config(const char *folder) {
  clv_hf_config c;
  clv_err err = {0};
  if (clv_hf_config_read(folder, NULL, &c, &err) == CLV_OK)
    puts("ok");
  else
    printf("no %s\n", err.text);
}

static void answer_peft(const char *path, const char *layer) {
  CLV_AUTO(clv_peft_clear) clv_peft p = {0};
  CLV_AUTO(clv_bytes_done) clv_bytes text = {0};
  clv_err err = {0};
  int64_t rank;
  clv_code code = clv_file_read(path, CLV_PEFT_MAX_CONFIG, &text, &err);
  if (code == CLV_OK) code = clv_peft_parse(path, text.data, text.len, NULL, &p, &err);
  if (code != CLV_OK) {
    printf("no %s\n", err.text);
    return;
  }
  double scale = clv_peft_scale(&p, layer, &rank);
  printf("ok %lld %.17g\n", (long long)rank, scale);
}

int main(void) {
  char line[4096], kind[16], path[2048], layer[256];
  while (fgets(line, sizeof line, stdin)) {
    int n = sscanf(line, "%15s %2047s %255s", kind, path, layer);
    if (n == 2 && strcmp(kind, "config") == 0)
      answer_config(path);
    else if (n == 3 && strcmp(kind, "peft") == 0)
      answer_peft(path, layer);
    else
      puts("no such question");
    fflush(stdout);
  }
  return 0;
}
